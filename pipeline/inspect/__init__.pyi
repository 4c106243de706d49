from .evaluation import evaluate as evaluate
from .evaluation import evaluate_labels as evaluate_labels
from .show import bin_range as bin_range
from .show import bin_width as bin_width
from .show import read_class_names as read_class_names
from .show import read_overview as read_overview
from .truth import read_truth as read_truth
