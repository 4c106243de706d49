"""A run's report as one HTML page.

`build` is the whole flow: `collect` chooses the score to show and reads the tables once, `pictures` fetches the samples
shown, `page` and `sections` make the template's values, `charts` draws; `template.html` with `style.css` is the page.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
