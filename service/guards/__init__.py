"""Protection of the engine against clients.

`middleware.py` checks keys, limits the size and speed of bodies and adds security headers; `connection.py` closes slow
connections and notices clients that go away. `url_policy.py` decides which image URLs are allowed, `fetch.py` downloads them.
"""
