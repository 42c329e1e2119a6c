// CuratorLock SERVERS PATH [KIND [N]]: prints `connected`, queues for the lock, prints `acquired NODE`; on a line on
// stdin: `released`. NODE is empty if the recipe does not tell it. KIND is
//   mutex, plain       InterProcessMutex (the default)
//   read, plain-read   the read lock of InterProcessReadWriteLock
//   write, plain-write the write lock of InterProcessReadWriteLock
//   semaphore          InterProcessSemaphoreV2 with N leases
//   revocable          InterProcessMutex that also prints `revoked` when it is asked to release, and keeps the lock
//   revoke             asks the holder of the znode PATH to release, prints `released`, and ends
//   barrier            DistributedBarrier: `acquired` when it opens
//   double-barrier     DistributedDoubleBarrier for N: `acquired` when all have entered, `released` when all have left
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.barriers.DistributedBarrier;
import org.apache.curator.framework.recipes.barriers.DistributedDoubleBarrier;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.framework.recipes.locks.Revoker;
import org.apache.curator.retry.RetryOneTime;

public class CuratorLock {
    /** What can be taken and given back. */
    interface Recipe {
        /** Blocks until it is taken. Returns the name of its znode, or an empty text. */
        String take() throws Exception;

        void giveBack() throws Exception;
    }

    static class Mutex extends InterProcessMutex implements Recipe {
        Mutex(CuratorFramework client, String path) {
            super(client, path);
        }

        public String take() throws Exception {
            acquire();
            return name(getLockPath());
        }

        public void giveBack() throws Exception {
            release();
        }
    }

    // The constructor of InterProcessReadWriteLock makes the same pair. Only subclasses learn the name of the znode.
    static class Write extends InterProcessReadWriteLock.WriteLock implements Recipe {
        Write(CuratorFramework client, String path) {
            super(client, path, null);
        }

        public String take() throws Exception {
            acquire();
            return name(getLockPath());
        }

        public void giveBack() throws Exception {
            release();
        }
    }

    static class Read extends InterProcessReadWriteLock.ReadLock implements Recipe {
        Read(CuratorFramework client, String path) {
            super(client, path, null, new Write(client, path));
        }

        public String take() throws Exception {
            acquire();
            return name(getLockPath());
        }

        public void giveBack() throws Exception {
            release();
        }
    }

    static class Semaphore implements Recipe {
        private final InterProcessSemaphoreV2 semaphore;
        private Lease lease;

        Semaphore(CuratorFramework client, String path, int leases) {
            semaphore = new InterProcessSemaphoreV2(client, path, leases);
        }

        public String take() throws Exception {
            lease = semaphore.acquire();
            return lease.getNodeName();
        }

        public void giveBack() {
            semaphore.returnLease(lease);
        }
    }

    static class Barrier implements Recipe {
        private final DistributedBarrier barrier;

        Barrier(CuratorFramework client, String path) {
            barrier = new DistributedBarrier(client, path);
        }

        public String take() throws Exception {
            barrier.waitOnBarrier();
            return "";
        }

        public void giveBack() {}
    }

    static class DoubleBarrier implements Recipe {
        private final DistributedDoubleBarrier barrier;

        DoubleBarrier(CuratorFramework client, String path, int members) {
            barrier = new DistributedDoubleBarrier(client, path, members);
        }

        public String take() throws Exception {
            barrier.enter();
            return "";
        }

        public void giveBack() throws Exception {
            barrier.leave();
        }
    }

    public static void main(String[] arguments) throws Exception {
        CuratorFramework client = CuratorFrameworkFactory.newClient(arguments[0], 4000, 4000, new RetryOneTime(100));
        client.start();
        client.blockUntilConnected();
        String path = arguments[1];
        String kind = arguments.length > 2 ? arguments[2] : "mutex";
        int number = arguments.length > 3 ? Integer.parseInt(arguments[3]) : 0;
        if (kind.equals("revoke")) {
            System.out.println("connected");
            Revoker.attemptRevoke(client, path);
        } else {
            Recipe recipe = recipe(client, path, kind, number);
            System.out.println("connected");
            System.out.println("acquired " + recipe.take());
            System.in.read();
            recipe.giveBack();
        }
        System.out.println("released");
        client.close();
    }

    static Recipe recipe(CuratorFramework client, String path, String kind, int number) {
        return switch (kind) {
            case "mutex", "plain" -> new Mutex(client, path);
            case "read", "plain-read" -> new Read(client, path);
            case "write", "plain-write" -> new Write(client, path);
            case "semaphore" -> new Semaphore(client, path, number);
            case "revocable" -> {
                Mutex mutex = new Mutex(client, path);
                mutex.makeRevocable(asked -> System.out.println("revoked"));
                yield mutex;
            }
            case "barrier" -> new Barrier(client, path);
            case "double-barrier" -> new DoubleBarrier(client, path, number);
            default -> throw new IllegalArgumentException("Curator has no " + kind);
        };
    }

    static String name(String path) {
        return path.substring(path.lastIndexOf('/') + 1);
    }
}
