"""The table of families, and the conversion of a file's settings to a description for the decoder.

    row.py      what a row says            names.py    what files call sizes and tensors
    dense.py    mixtures.py   the rows     table.py    all of them, by name and by GGUF architecture
    config.py   from config.json           gguf.py     from GGUF metadata
    scaling.py  rope settings of both      layers.py   which layers have windows and rope
    sizes.py    checks of both             refusals.py settings that change answers and that no row reads

A family with a new variation is a new row, and a new fact only if no row had it yet.
"""

from octavo.model.families.config import describe_config
from octavo.model.families.gguf import describe_gguf
from octavo.model.families.row import Description, Family
from octavo.model.families.scaling import RopeTensors
from octavo.model.families.table import FAMILIES

__all__ = ["FAMILIES", "Description", "Family", "RopeTensors", "describe_config", "describe_gguf"]
