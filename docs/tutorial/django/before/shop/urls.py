"""The addresses of the shop."""

from django.urls import path

from shop import views

urlpatterns = [
    path("orders", views.place),
    path("orders/<id>/pay", views.pay),
    path("orders/<id>/ship", views.ship),
    path("orders/<id>", views.read),
]
