package punctualtest_test

import (
	"context"
	"testing"
	"time"

	punctual "punctual.dev/go"
	"punctual.dev/go/punctualtest"
)

var start = time.Date(2027, 1, 4, 8, 0, 0, 0, time.UTC)

func TestOnlyTheTestMovesTheClock(t *testing.T) {
	broker := punctualtest.Start(t, punctualtest.Clock(start))
	if now := broker.Now(); !now.Equal(start) {
		t.Errorf("the clock starts at %s", now)
	}
	ctx := context.Background()
	_, err := broker.Client.Schedule(ctx, "yearly", punctual.Every(24*time.Hour), punctual.Count(365), punctual.ToQueue("days"))
	if err != nil {
		t.Fatal(err)
	}
	end := start.AddDate(1, 0, 1)
	if advanced := broker.AdvanceTo(end); !advanced.Now.Equal(end) {
		t.Errorf("advanced: %+v", advanced)
	}
	if now := broker.Now(); !now.Equal(end) {
		t.Errorf("the clock is at %s instead of %s", now, end)
	}
}

func TestAClockThatRunsCanBeFrozen(t *testing.T) {
	broker := punctualtest.Start(t, punctualtest.Clock(start))
	ctx := context.Background()
	running, err := broker.Client.RunClock(ctx, 3600)
	if err != nil || !running.Running || running.Speed != 3600 {
		t.Fatalf("run: %+v, %v", running, err)
	}
	deadline := time.Now().Add(10 * time.Second)
	for !broker.Now().After(start) {
		if time.Now().After(deadline) {
			t.Fatal("the clock does not run")
		}
		time.Sleep(time.Millisecond)
	}
	frozen, err := broker.Client.FreezeClock(ctx)
	if err != nil || frozen.Running || frozen.Speed != 0 {
		t.Fatalf("freeze: %+v, %v", frozen, err)
	}
	if now := broker.Now(); !now.Equal(frozen.Now) {
		t.Errorf("frozen at %s, the clock is at %s", frozen.Now, now)
	}
}
