"""When the number of machines that train changed."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("coordination", "0003_plan_and_links")]

    operations = [
        migrations.AddField(model_name="presence", name="crowd", field=models.JSONField(default=list)),
    ]
