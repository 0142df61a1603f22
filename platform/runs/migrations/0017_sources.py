"""Further sources of a run's data, and a model that it adapts."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("runs", "0016_checkpoints")]

    operations = [
        migrations.AddField(
            "dataset",
            "first",
            models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="further",
                to="runs.dataset",
            ),
        ),
        migrations.AddField(
            "dataset",
            "base",
            models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="adapted",
                to="runs.dataset",
            ),
        ),
        migrations.AddField("shard", "source", models.PositiveSmallIntegerField(default=0)),
    ]
