"""Creates the table of orders."""

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies = []
    operations = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.TextField(primary_key=True, serialize=False)),
                ("amount", models.IntegerField()),
                ("state", models.TextField()),
            ],
        ),
    ]
