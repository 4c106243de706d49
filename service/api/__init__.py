"""One module for each group of routes; `service.app` includes their routers."""
