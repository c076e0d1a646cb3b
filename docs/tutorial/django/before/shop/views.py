"""What the shop does with orders."""

import json

from django.db import IntegrityError, transaction
from django.http import JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_POST

from shop.models import Order


class DeclinedError(Exception):
    """The bank does not pay."""


def find(id):
    return get_object_or_404(Order.objects.select_for_update(), pk=id)


def charge(order):
    if order.amount > 1000:
        raise DeclinedError


@require_POST
def place(request):
    new = json.loads(request.body)
    try:
        with transaction.atomic():
            order = Order.objects.create(id=new["id"], amount=new["amount"], state="placed")
    except IntegrityError:
        return JsonResponse({"error": "there is such an order"}, status=409)
    return JsonResponse({"id": order.id}, status=201)


@require_POST
def pay(request, id):
    try:
        with transaction.atomic():
            order = find(id)
            order.state = "paid"
            order.save()
            charge(order)
    except DeclinedError:
        return JsonResponse({"error": "the card was declined"}, status=402)
    return JsonResponse({"id": id})


@require_POST
@transaction.atomic
def ship(request, id):
    order = find(id)
    if order.state != "paid":
        return JsonResponse({"error": "the order is not paid"}, status=409)
    order.state = "shipped"
    order.save()
    return JsonResponse({"id": id})


def read(request, id):
    order = get_object_or_404(Order, pk=id)
    return JsonResponse({"id": id, "state": order.state})
