"""A notebook of one cell that lets a rented computer join a run: for Colab and Kaggle."""

import json
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from runs.access import access_run
from web.agent_package import install_lines
from web.http.requester import run_or_404
from web.pages.site.install import download_page

KIND = "application/x-ipynb+json"


@require_safe
def notebook(request: HttpRequest, slug: str) -> HttpResponse:
    """The notebook of a run, for whoever may see the run."""
    run = run_or_404(access_run, request, slug)
    install = install_lines(request)
    if install is None:
        return download_page(request)
    address = request.build_absolute_uri(f"/runs/{run.slug}/")
    made = document(title=run.title, address=address, requirement=install.requirement)
    headers = {"Content-Disposition": f'attachment; filename="{run.slug}.ipynb"'}
    return HttpResponse(json.dumps(made, indent=1), content_type=KIND, headers=headers)


def document(*, title: str, address: str, requirement: str) -> dict[str, Any]:
    """A notebook of format 4.5. The title is written by a stranger: it stays in its comment."""
    lines = [
        f"# Joins “{' '.join(title.split())}” at {address}",
        "# Open the link it prints, check the code, and approve. Stop the cell to leave.",
        "# A GPU is used if available. Kaggle: first turn on Internet in the notebook's settings.",
        f"%pip install --quiet {requirement}",
        f"!PYTHONUNBUFFERED=1 manyhands join {address}",
    ]
    cell: dict[str, Any] = {
        "cell_type": "code",
        "id": "join",
        "execution_count": None,
        "metadata": {},
        "outputs": [],
        "source": [f"{line}\n" for line in lines[:-1]] + lines[-1:],
    }
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    facts = {"kernelspec": kernel, "language_info": {"name": "python"}, "accelerator": "GPU"}
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": facts, "cells": [cell]}
