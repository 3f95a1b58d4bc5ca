"""What a backend may look at during detection."""

from __future__ import annotations

import ctypes
import sys

from core_engine.plugin import Probe


def test_a_library_is_loaded_by_its_file_name():
    name = ctypes.util.find_library("c")
    assert name is not None
    assert Probe().load_library(name).abs(ctypes.c_int(-3)) == 3


def test_a_library_that_is_not_there_is_none():
    assert Probe().load_library("libno-such-device.so.1") is None


def test_a_package_file_is_read_without_importing_the_package():
    watched = "pydoc_data"
    sys.modules.pop(watched, None)
    text = Probe().package_text(watched, "topics.py")
    assert text is not None
    assert "topics" in text
    assert watched not in sys.modules


def test_what_is_not_installed_has_no_text():
    assert Probe().package_text("no_such_package", "version.py") is None
    assert Probe().package_text("pydoc_data", "no_such_file.py") is None
