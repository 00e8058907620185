"""The build backend: setuptools, with the page built first.

Node is asked for as a build requirement only where the page has to be built and no Node is there,
so that a wheel or an sdist with its bundle installs without it.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    prepare_metadata_for_build_editable as prepare_metadata_for_build_editable,
)
from setuptools.build_meta import (
    prepare_metadata_for_build_wheel as prepare_metadata_for_build_wheel,
)

from build_support import front_end, node

Settings = Mapping[str, Any] | None


def get_requires_for_build_sdist(config_settings: Settings = None) -> list[str]:
    """What has to be installed before an sdist is built."""
    return [*build_meta.get_requires_for_build_sdist(config_settings), *_node_if_needed()]


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """What has to be installed before a wheel is built."""
    return [*build_meta.get_requires_for_build_wheel(config_settings), *_node_if_needed()]


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    """What has to be installed before an editable installation."""
    return [*build_meta.get_requires_for_build_editable(config_settings), *_node_if_needed()]


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    """Build an sdist that carries the page's bundle."""
    _build_page()
    return build_meta.build_sdist(sdist_directory, config_settings)


def build_wheel(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Build a wheel."""
    _build_page()
    # setuptools would pack every file that an earlier build left there, such as old bundles.
    shutil.rmtree(node.ROOT / "build", ignore_errors=True)
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Build what `pip install -e` installs."""
    _build_page()
    return build_meta.build_editable(wheel_directory, config_settings, metadata_directory)


def _node_if_needed() -> list[str]:
    return [node.REQUIREMENT] if front_end.must_build() and not node.find() else []


def _build_page() -> None:
    try:
        front_end.ensure()
    except node.BuildError as error:
        # An exception would bury the sentence under the front end's traceback.
        sys.exit(str(error))
