"""What one gateway process holds: its connection and the parts that share it."""

from __future__ import annotations

from broker.connection import Broker
from broker.errors import BrokerError
from broker.facts import Facts
from broker.topology import ACK_WAIT
from gateway.acceptance import Acceptance
from gateway.admission import Admission
from gateway.apps import Apps
from gateway.batch import Batch
from gateway.batch_intake import Intake
from gateway.batch_job import Jobs
from gateway.batch_results import Results
from gateway.batch_rows import Rows
from gateway.batch_store import JobStore
from gateway.batch_window import Windows
from gateway.durable import Durable
from gateway.requests import Requests
from gateway.sockets import CONNECTIONS, Sockets
from gateway.uploads import Uploads


class Service:
    """Stateless but for connections and caches: any gateway serves and resumes any request."""

    def __init__(
        self, broker: Broker, admin_token: str, ack_wait: float = ACK_WAIT, connections: int = CONNECTIONS
    ) -> None:
        self.broker, self.admin_token = broker, admin_token
        self.facts = Facts(broker)
        self.apps = Apps(broker)
        self.admission = Admission(broker)
        self.uploads = Uploads(broker)
        self.sockets = Sockets(connections)
        self._acceptance = Acceptance(broker, self.facts)
        self.requests = Requests(broker, self.facts, self.apps, self._acceptance)
        results = Results(broker, self.facts)
        self.durable = Durable(broker, self.requests, results, ack_wait)
        self.batch = self._batch(results, ack_wait)

    async def start(self) -> None:
        await self.admission.start()
        await self.requests.start()
        await self.durable.start()
        await self.batch.start()

    async def drain(self) -> None:
        """Sends clients elsewhere. That they go gives up none of their requests."""
        self.requests.stopping = True
        await self.sockets.close()

    async def close(self) -> None:
        """Stops claiming, then driving. What has not ended is taken over elsewhere."""
        await self.batch.close()
        await self.durable.stop()
        await self.requests.close()
        await self.durable.close()
        await self.admission.close()
        await self.broker.close()

    def _batch(self, results: Results, ack_wait: float) -> Batch:
        store = JobStore(self.broker)
        rows = Rows(self._acceptance, self.uploads, results, self.admission)
        windows = Windows(self.broker)
        jobs = Jobs(self.broker, store, self.apps, self._acceptance, self.requests, rows, results, windows, ack_wait)
        return Batch(Intake(self.broker, store, self.apps), jobs)

    async def not_ready(self) -> str:
        """Why requests cannot be served now; "" if they can."""
        if not self.broker.connected:
            return "NATS is away"
        try:
            await self.facts.last("run.readiness.end")
        except BrokerError as error:
            return f"the stream of facts does not answer: {error}"
        return ""
