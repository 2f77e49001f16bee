"""Render the pages of reports and exports from their Jinja templates."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from stairwell.report.colors import css_variables
from stairwell.version import __version__


def render(template: str, **context: Any) -> str:
    """Render a template of this package, such as `report/page.html`. All values are escaped."""
    return environment().get_template(template).render(version=__version__, **context)


@cache
def environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("stairwell", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.globals.update(resource=resource, css_variables=css_variables)
    return environment


def resource(path: str) -> Markup:
    """Return a file of this package as it is, for styles and scripts."""
    return Markup((files("stairwell") / path).read_text(encoding="utf-8"))
