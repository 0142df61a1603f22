"""Texts and models that come from the Hub."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("runs", "0017_sources")]

    operations = [migrations.AddField("dataset", "origin", models.JSONField(blank=True, null=True))]
