"""Tables get the names that pages use."""

from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
        ("runs", "0011_coverage_left_out"),
    ]

    operations = [
        migrations.RenameModel("Happening", "ActivityLine"),
        migrations.AlterField(
            "activityline",
            "run",
            models.ForeignKey("runs.Run", on_delete=models.CASCADE, related_name="activity"),
        ),
        migrations.RenameModel("NamedHand", "NamedVolunteer"),
    ]
