"""Prints every call it gets: something for Punctual to call while you try it out."""

import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        payload = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
        key, lag = self.headers.get("punctual-key"), self.headers.get("punctual-lag-ms")
        occasion = self.headers.get("punctual-occasion")
        print(f"{self.path} key={key} lag={lag}ms occasion={occasion} payload={payload}", flush=True)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", 9000))), Receiver).serve_forever()
