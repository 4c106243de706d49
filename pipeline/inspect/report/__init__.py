"""A run's report as one HTML page.

`build` is the whole flow: `collect` reads the tables once, `pictures` fetches the samples shown, `page`, `score_page`,
`label_page` and `facts` make the template's values, `charts` draws, and `template.html` with `style.css` is the page.
`score_view` chooses which score is shown.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
