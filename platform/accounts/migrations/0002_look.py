from typing import Any

from django.apps.registry import Apps
from django.db import migrations, models

from accounts.names import look_of, validate_name

LOOK_LENGTH = 200


def fill(apps: Apps, schema_editor: Any) -> None:
    """Store what each name looks like. Of two names that look alike, the older one keeps the look."""
    del schema_editor
    person = apps.get_model("accounts", "Person")
    seen = set()
    for each in person.objects.order_by("pk").iterator():
        look = look_of(each.username)[:LOOK_LENGTH]
        if look not in seen:
            person.objects.filter(pk=each.pk).update(look=look)
            seen.add(look)


class Migration(migrations.Migration):
    dependencies = (("accounts", "0001_initial"),)
    operations = (
        migrations.AddField("person", "look", models.CharField(editable=False, max_length=200, null=True, unique=True)),
        migrations.AlterField(
            "person",
            "username",
            models.CharField(
                "name",
                error_messages={"unique": "That name is taken."},
                max_length=30,
                unique=True,
                validators=[validate_name],
            ),
        ),
        migrations.RunPython(fill, migrations.RunPython.noop, elidable=True),
    )
