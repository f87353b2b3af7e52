"""Three tenants, as tests of the server have them: their keys, their file, and what a key is sent as."""

from octavo.tenants import digest_of

ALICE, BOB, BOSS, NOBODY = (f"octavo-{name}" for name in ("alice", "bob", "boss", "nobody"))


def entry(name, *keys, lines=""):
    hashes = ", ".join(f'"{digest_of(key).hex()}"' for key in keys)
    return f'[[tenant]]\nname = "{name}"\nkey_sha256 = [{hashes}]\n{lines}\n'


TENANTS = (
    entry("alice", ALICE, lines="guaranteed = 4\nmaximum = 8\nmax_queue = 5")
    + entry("bob", BOB, lines="[tenant.defaults]\ntimeout = 60\nttft_timeout = 5.5\npriority = 10")
    + entry("boss", BOSS, lines="operator = true\npriority_min = -100")
)


def by(key):
    return {"headers": {"Authorization": f"Bearer {key}"}}


def live(model, *streams):
    """Let the submissions of those places count as running again."""
    for place in streams:
        model.submitted[place].ended = False
