"""Settings of Sphinx. `make docs` builds the site into build/docs, strictly and offline."""

import os
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext")]
os.environ["DMBP_CACHE"] = "off"
os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # as the command line does, for shared cores

from figure_scraper import figure_scraper  # noqa: E402

import dmbp  # noqa: E402
from dmbp.models.torchvision_models import import_torchvision  # noqa: E402

import_torchvision()  # before Lightning does, which fails with a CPU build of torch

project = "dmbp"
author = "The dmbp developers"
project_copyright = "The dmbp developers, Apache-2.0"
version = release = dmbp.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    # Ours, in _ext/
    "api_pages",
    "generated_pages",
    "llms_txt",
]
exclude_patterns = ["_ext", "figures", "gallery", "notebooks", "auto_gallery/*.ipynb"]
suppress_warnings = ["config.cache"]

# Links: every one has to lead somewhere. Names of other packages are not linked, because that needs
# their inventories from the net.
nitpicky = True
smartquotes = False  # "--" before an option stays what it is
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "deflist"]
OTHERS = (
    "torch|torchvision|numpy|np|PIL|matplotlib|captum|pandas|polars|lightning|transformers|pathlib"
    "|os|rich|collections|typing|types|io|abc|datetime|concurrent|builtins|pydantic|IPython|sqlite3"
)
nitpick_ignore_regex = [
    ("py:.*", rf"({OTHERS})(\..*)?"),
    ("py:class", r"optional|callable|T|P|R|self|Tensor|Path|Module|Any|Figure|Axes|[A-Z]"),
]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
viewcode_line_numbers = False

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "filename_pattern": r"/plot_",
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "show_memory": False,
    "write_computation_times": False,
    "show_signature": False,
    "min_reported_time": 1e9,
    "remove_config_comments": True,
    "thumbnail_size": (400, 280),
    "abort_on_example_error": False,
    "image_scrapers": (figure_scraper,),
    "reset_modules": ("matplotlib",),
    "doc_module": (),
    "backreferences_dir": None,
    "copyfile_regex": r".*\.jpg",
}

html_theme = "furo"
html_baseurl = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]["urls"][
    "Documentation"
]
html_title = f"dmbp {version}"
html_favicon = "_static/icon.svg"
html_static_path = ["_static"]
html_search_scorer = str(HERE / "_static/scorer.js")
html_css_files = ["dmbp.css"]
html_copy_source = True
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#a3201d", "color-brand-content": "#1c5fa8"},
    "dark_css_variables": {"color-brand-primary": "#ff8a80", "color-brand-content": "#8ab8ff"},
    "footer_icons": [],
}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
