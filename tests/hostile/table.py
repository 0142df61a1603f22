"""The table of all behaviours."""

from tests.hostile.breaking import BREAKING
from tests.hostile.relaying import RELAYING
from tests.hostile.stalling import STALLING

ROWS = (*STALLING, *BREAKING, *RELAYING)
