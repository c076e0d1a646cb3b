"""The outbox in Django's transactions, and an app that brings its schema.

INSTALLED_APPS = [..., "outbox.adapters.django"]          # manage.py migrate, check, outbox

orders = DjangoOutbox(producer_group="orders")

with transaction.atomic():
    order = Order.objects.create(state="paid")
    orders.send(order, Message("orders", key=str(order.pk), body="paid"))
"""

from outbox.adapters.django.sending import DjangoOutbox

__all__ = ["DjangoOutbox"]
