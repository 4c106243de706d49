from .job import convert as convert
from .kinds import KINDS as KINDS
from .kinds import Kind as Kind
