"""How a dataset is prepared, where that was a number of pieces."""

import json
from typing import Any

from django.db import migrations, models


def as_preparations(apps: Any, _: Any) -> None:
    datasets = apps.get_model("runs", "Dataset").objects
    for vocab in datasets.exclude(vocab=None).order_by().values_list("vocab", flat=True).distinct():
        preparation = json.dumps({"data": "text", "vocab": vocab}, separators=(",", ":"))
        datasets.filter(vocab=vocab).update(preparation=preparation)


class Migration(migrations.Migration):
    dependencies = [("runs", "0013_averaged_totals")]

    operations = [
        migrations.AddField(
            model_name="dataset",
            name="preparation",
            field=models.TextField(blank=True, default=""),
            preserve_default=False,
        ),
        migrations.RunPython(as_preparations, migrations.RunPython.noop),
    ]
