"""A model that a run adapts."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("runs", "0017_sources")]

    operations = [
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
    ]
