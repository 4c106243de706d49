from .job import convert as convert
