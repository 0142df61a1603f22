from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0002_devicerequest'),
    ]

    operations = [
        migrations.AddField(
            model_name='person',
            name='session_epoch',
            field=models.PositiveIntegerField(default=0, editable=False),
        ),
    ]
