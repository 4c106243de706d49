from .anchors import Anchors as Anchors
from .anchors import anchors_file as anchors_file
from .classes import BUILT_IN as BUILT_IN
from .classes import TEMPLATES as TEMPLATES
from .classes import ClassSet as ClassSet
from .classes import load_classes as load_classes
from .classes import prompts as prompts
