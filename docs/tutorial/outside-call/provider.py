"""A card company on a bad day: it charges at once, and takes a while to confirm what is 100 or more.

Asked again with the same Idempotency-Key, it charges nothing and returns the first result. GET lists the charges.
"""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SECONDS = 30
charges: dict[str, dict[str, object]] = {}
lock = threading.Lock()


class Provider(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        amount = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["amount"]
        key = self.headers["Idempotency-Key"]
        with lock:
            is_new = key not in charges
            state = "charged" if amount <= 1000 else "declined"
            result = charges.setdefault(key, {"state": state, "amount": amount})
        if is_new and amount >= 100:
            time.sleep(SECONDS)
        self.reply(result)

    def do_GET(self) -> None:
        self.reply(charges)

    def reply(self, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8990
    server = ThreadingHTTPServer(("127.0.0.1", port), Provider)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
