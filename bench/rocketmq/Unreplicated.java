import org.apache.rocketmq.store.ha.DefaultHAService;

/** Replication for a broker without replicas: listens nowhere, where the original listens on every interface. */
public final class Unreplicated extends DefaultHAService {
    @Override
    public void start() {
        // Nobody connects, and nothing is waited for.
    }
}
