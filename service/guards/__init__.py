"""What stands between a client and the engine.

`auth.py` checks keys, `body_limit.py` the size and speed of bodies, `connection.py` slow headers and clients that go away,
`headers.py` adds security headers. `url_policy.py` decides which image URLs are allowed, `fetch.py` downloads them.
"""
