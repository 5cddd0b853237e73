"""A mail server for tests: smtp.py PORT DIR [--tls CERT KEY | --starttls CERT KEY] [--credentials USER:PASSWORD].

Each mail that it takes is a line of JSON in DIR/mails. It ends with its standard input.
"""

import json
import pathlib
import ssl
import sys

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult

port, folder, *flags = sys.argv[1:]
folder = pathlib.Path(folder)


def values_of(flag, count):
    at = flags.index(flag) if flag in flags else None
    return None if at is None else flags[at + 1 : at + 1 + count]


def context_of(pair):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pair)
    return context


class Recorder:
    async def handle_RCPT(self, server, session, envelope, address, options):
        if address.startswith("unknown@"):
            return "550 5.1.1 no such user"
        if address.startswith("busy@"):
            return "450 4.2.1 try again later"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server, session, envelope):
        mail = {
            "sender": envelope.mail_from,
            "recipients": envelope.rcpt_tos,
            "user": session.auth_data or "",
            "message": envelope.original_content.decode(),
        }
        with open(folder / "mails", "a") as log:
            log.write(json.dumps(mail) + "\n")
        return "250 2.0.0 queued as test-1"


def authenticate(server, session, envelope, mechanism, data):
    user, password = data.login.decode(), data.password.decode()
    if values_of("--credentials", 1) == [f"{user}:{password}"]:
        return AuthResult(success=True, auth_data=user)
    return AuthResult(success=False, handled=False)


tls, starttls = values_of("--tls", 2), values_of("--starttls", 2)


class Server(Controller):
    def factory(self):
        return SMTP(
            self.handler,
            hostname="mail.test",
            tls_context=context_of(starttls) if starttls else None,
            require_starttls=starttls is not None,
            authenticator=authenticate,
            auth_required="--credentials" in flags,
            auth_require_tls=starttls is not None,
        )


controller = Server(
    Recorder(),
    hostname="127.0.0.1",
    port=int(port),
    ssl_context=context_of(tls) if tls else None,
)
controller.start()
(folder / "ready").touch()
sys.stdin.read()
