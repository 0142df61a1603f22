import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('runs', '0006_archive'),
    ]

    operations = [
        migrations.CreateModel(
            name='AuditMark',
            fields=[
                ('run', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='audit_mark', serialize=False, to='runs.run')),
                ('index', models.BigIntegerField()),
                ('digest', models.CharField(max_length=64)),
                ('books', models.BinaryField()),
                ('at', models.DateTimeField(auto_now=True)),
            ],
        ),
    ]
