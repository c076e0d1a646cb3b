"""Orders over HTTP, with FastAPI and SQLAlchemy."""

import os
from collections.abc import Iterator
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy import create_engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

engine = create_engine(os.environ["DATABASE_URL"])
app = FastAPI()


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[str] = mapped_column(primary_key=True)
    amount: Mapped[int]
    state: Mapped[str]


Base.metadata.create_all(engine)


class NewOrder(BaseModel):
    id: str
    amount: int


def get_session() -> Iterator[Session]:
    with Session(engine) as session:
        yield session


Db = Annotated[Session, Depends(get_session)]


def find(session: Session, id: str) -> Order:
    order = session.get(Order, id, with_for_update=True)
    if order is None:
        raise HTTPException(404, "no such order")
    return order


def charge(order: Order) -> None:
    if order.amount > 1000:
        raise HTTPException(402, "the card was declined")


@app.post("/orders", status_code=201)
def place(new: NewOrder, session: Db) -> dict[str, str]:
    order = Order(id=new.id, amount=new.amount, state="placed")
    session.add(order)
    try:
        session.commit()
    except IntegrityError:
        raise HTTPException(409, "there is such an order") from None
    return {"id": new.id}


@app.post("/orders/{id}/pay")
def pay(id: str, session: Db) -> dict[str, str]:
    order = find(session, id)
    order.state = "paid"
    charge(order)
    session.commit()
    return {"id": id}


@app.post("/orders/{id}/ship")
def ship(id: str, session: Db) -> dict[str, str]:
    order = find(session, id)
    if order.state != "paid":
        raise HTTPException(409, "the order is not paid")
    order.state = "shipped"
    session.commit()
    return {"id": id}


@app.get("/orders/{id}")
def read(id: str, session: Db) -> dict[str, str]:
    return {"id": id, "state": find(session, id).state}
