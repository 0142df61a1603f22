from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("runs", "0010_snapshots_verified")]

    operations = [migrations.AddField("coverage", "left_out", models.JSONField(default=list))]
