// CuratorLock SERVERS PATH: prints `connected`, queues for the lock, prints `acquired NODE`; on a line on stdin:
// `released`.
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;

public class CuratorLock {
    static class Mutex extends InterProcessMutex {
        Mutex(CuratorFramework client, String path) {
            super(client, path);
        }

        String node() {
            String path = getLockPath();
            return path.substring(path.lastIndexOf('/') + 1);
        }
    }

    public static void main(String[] arguments) throws Exception {
        CuratorFramework client = CuratorFrameworkFactory.newClient(arguments[0], 4000, 4000, new RetryOneTime(100));
        client.start();
        client.blockUntilConnected();
        Mutex mutex = new Mutex(client, arguments[1]);
        System.out.println("connected");
        mutex.acquire();
        System.out.println("acquired " + mutex.node());
        System.in.read();
        mutex.release();
        System.out.println("released");
        client.close();
    }
}
