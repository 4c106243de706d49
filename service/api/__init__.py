"""One module for each group of routes; `noisegate.service.app` includes their routers."""
