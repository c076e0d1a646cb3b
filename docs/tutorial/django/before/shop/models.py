"""The tables of the shop."""

from django.db import models


class Order(models.Model):
    id = models.TextField(primary_key=True)
    amount = models.IntegerField()
    state = models.TextField()
