// Command bench measures the client: how many tasks it schedules in batches per second, and how
// many deliveries a worker with a handler that does nothing acknowledges per second.
//
//	PUNCTUAL_BIN=/path/to/punctual go run ./bench
//	go run ./bench -url http://127.0.0.1:7400
//
// Without -url it starts a broker of its own on a temporary directory.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	punctual "punctual.dev/go"
)

const (
	// startTimeout is how long a broker may take to be ready, on a busy machine.
	startTimeout = 30 * time.Second
	// runTimeout bounds the whole run.
	runTimeout = 10 * time.Minute
	// batchTasks is how many tasks one call of ScheduleMany has.
	batchTasks = 2000
)

func main() {
	url := flag.String("url", "", "URL of a broker; empty starts one")
	tasks := flag.Int("tasks", 400_000, "tasks to schedule")
	deliveries := flag.Int("deliveries", 200_000, "deliveries to acknowledge")
	callers := flag.Int("callers", 8, "goroutines that schedule")
	concurrency := flag.Int("concurrency", 2000, "handlers of the worker")
	flag.Parse()
	if err := run(*url, *tasks, *deliveries, *callers, *concurrency); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(url string, tasks, deliveries, callers, concurrency int) error {
	ctx, cancel := context.WithTimeout(context.Background(), runTimeout)
	defer cancel()
	if url == "" {
		started, stop, err := startBroker(ctx)
		if err != nil {
			return err
		}
		defer stop()
		url = started
	}
	client, err := punctual.New(url, punctual.Namespace("bench"))
	if err != nil {
		return err
	}
	took, err := schedule(ctx, client, tasks, callers, "idle", time.Hour)
	if err != nil {
		return err
	}
	report("schedule in batches", tasks, took)
	if _, err := schedule(ctx, client, deliveries, callers, "work", 0); err != nil {
		return err
	}
	took, err = work(ctx, client, deliveries, concurrency)
	if err != nil {
		return err
	}
	report("worker, deliveries acknowledged", deliveries, took)
	return checkDone(ctx, client, deliveries)
}

// checkDone checks that the broker has counted every delivery as done, within ten seconds: an ack is
// durable a moment after it is answered.
func checkDone(ctx context.Context, client *punctual.Client, deliveries int) error {
	deadline := time.Now().Add(10 * time.Second)
	for {
		stats, err := client.Stats(ctx)
		if err != nil {
			return err
		}
		if stats.Done >= int64(deliveries) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the broker counts %d of %d deliveries as done", stats.Done, deliveries)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func report(what string, count int, took time.Duration) {
	fmt.Printf("%-32s %8d in %6.2f s: %8.0f per second\n", what, count, took.Seconds(), float64(count)/took.Seconds())
}

// schedule schedules tasks in batches from several goroutines and returns how long that took.
func schedule(ctx context.Context, client *punctual.Client, tasks, callers int, queue string, delay time.Duration) (time.Duration, error) {
	started := time.Now()
	var next atomic.Int64
	errs := make([]error, callers)
	var calls sync.WaitGroup
	for caller := range callers {
		calls.Add(1)
		go func() {
			defer calls.Done()
			for errs[caller] == nil {
				first := int(next.Add(batchTasks)) - batchTasks
				if first >= tasks {
					return
				}
				errs[caller] = scheduleBatch(ctx, client, queue, delay, first, min(first+batchTasks, tasks))
			}
		}()
	}
	calls.Wait()
	return time.Since(started), errors.Join(errs...)
}

func scheduleBatch(ctx context.Context, client *punctual.Client, queue string, delay time.Duration, first, end int) error {
	batch := make([]punctual.TaskFields, 0, end-first)
	for i := first; i < end; i++ {
		key := queue + "-" + strconv.Itoa(i)
		batch = append(batch, punctual.NewTask(key, punctual.In(delay), punctual.ToQueue(queue), punctual.JSON(i)))
	}
	results, err := client.ScheduleMany(ctx, batch)
	if err != nil {
		return err
	}
	for _, result := range results {
		if result.Err() != nil {
			return result.Err()
		}
	}
	return nil
}

// work runs a worker until it has acknowledged the deliveries, and returns how long that took.
func work(ctx context.Context, client *punctual.Client, deliveries, concurrency int) (time.Duration, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var handled atomic.Int64
	worker := client.Worker(punctual.Concurrency(concurrency), punctual.OnError(func(err error) {
		fmt.Fprintln(os.Stderr, "bench: worker:", err)
	}))
	punctual.Handle(worker, "work", func(context.Context, punctual.Fire[int]) error {
		if handled.Add(1) == int64(deliveries) {
			stop()
		}
		return nil
	})
	started := time.Now()
	// Run returns when the acks of the last deliveries are answered.
	err := worker.Run(ctx)
	took := time.Since(started)
	if err == nil && handled.Load() < int64(deliveries) {
		err = fmt.Errorf("the worker handled %d of %d deliveries", handled.Load(), deliveries)
	}
	return took, err
}

// startBroker starts a broker on a temporary directory and returns its URL, and how to stop it.
func startBroker(ctx context.Context) (string, func(), error) {
	binary := os.Getenv("PUNCTUAL_BIN")
	if binary == "" {
		binary = "punctual"
	}
	directory, err := os.MkdirTemp("", "punctual-bench-")
	if err != nil {
		return "", nil, err
	}
	address, err := freeAddress()
	if err != nil {
		return "", nil, err
	}
	command := exec.Command(binary, "serve", "--listen", address, "--data-dir", directory)
	if err := command.Start(); err != nil {
		return "", nil, err
	}
	stop := func() {
		_ = command.Process.Kill()
		_ = command.Wait()
		_ = os.RemoveAll(directory)
	}
	client, err := punctual.New("http://" + address)
	if err != nil {
		stop()
		return "", nil, err
	}
	deadline := time.Now().Add(startTimeout)
	for {
		if _, err := client.Ready(ctx); err == nil {
			return "http://" + address, stop, nil
		} else if time.Now().After(deadline) {
			stop()
			return "", nil, fmt.Errorf("the broker is not ready: %w", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer listener.Close()
	return listener.Addr().String(), nil
}
