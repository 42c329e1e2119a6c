// CuratorHandOffs SERVERS PATH CONTENDERS SECONDS SESSIONS: how often per second an InterProcessMutex passes from one contender
// to the next. Each contender has a thread of its own, and queues again as soon as it has released. Prints one
// number, counted after two seconds of warm-up. Ends with 1 if two contenders ever hold the lock, or if one fails.
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;

public class CuratorHandOffs {
    private static final AtomicBoolean HELD = new AtomicBoolean();
    // The lock under test guards the increment; `volatile` is for those who only read.
    private static volatile long handOffs;
    private static volatile boolean over;

    public static void main(String[] arguments) throws Exception {
        int contenders = Integer.parseInt(arguments[2]);
        List<CuratorFramework> clients = new ArrayList<>();
        for (int i = 0; i < Integer.parseInt(arguments[4]); i++) {
            clients.add(connect(arguments[0]));
        }
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < contenders; i++) {
            CuratorFramework client = clients.get(i % clients.size());
            Thread thread = new Thread(() -> contend(new InterProcessMutex(client, arguments[1])));
            thread.start();
            threads.add(thread);
        }
        Thread.sleep(2000);
        double rate = perSecond(Double.parseDouble(arguments[3]));
        over = true;
        for (Thread thread : threads) {
            thread.join();
        }
        clients.forEach(CuratorFramework::close);
        System.out.printf(Locale.ROOT, "%.1f%n", rate);
    }

    private static CuratorFramework connect(String servers) throws InterruptedException {
        CuratorFramework client = CuratorFrameworkFactory.newClient(servers, new ExponentialBackoffRetry(1000, 3));
        client.start();
        client.blockUntilConnected();
        return client;
    }

    private static void contend(InterProcessMutex mutex) {
        try {
            while (!over) {
                mutex.acquire();
                if (HELD.getAndSet(true)) {
                    fail("two contenders hold the lock");
                }
                handOffs++;
                // Lets other threads run, which would otherwise hardly ever see the flag.
                Thread.yield();
                HELD.set(false);
                mutex.release();
            }
        } catch (Exception error) {
            fail("a contender failed: " + error);
        }
    }

    private static double perSecond(double seconds) throws InterruptedException {
        long start = System.nanoTime();
        long before = handOffs;
        Thread.sleep((long) (seconds * 1000));
        return (handOffs - before) * 1e9 / (System.nanoTime() - start);
    }

    private static void fail(String why) {
        System.err.println(why);
        Runtime.getRuntime().halt(1);
    }
}
