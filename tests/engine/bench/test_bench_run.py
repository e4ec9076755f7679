from __future__ import annotations

from typing import Any

import pytest
from conftest import FakeClient

from engine.bench.options import BenchOptions
from engine.bench.prompts import BenchPrompt
from engine.bench.result import BenchResult
from engine.bench.run import BenchProgress, run_bench
from engine.errors import ConfigError, EngineUnavailable
from engine.types import SpeculationMode
