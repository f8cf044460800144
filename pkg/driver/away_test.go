package driver

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A replica that has nothing to give up goes on waiting, also when that changes meanwhile.
func TestSuperviseGivesUpOnlyWhenItMay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var w wire
		var may atomic.Bool
		first := newFake("d").serve(t, w.listen())
		d := connect(t, quiet(t), Config{Address: "/mem", Timeout: 15 * time.Second, AwayLimit: 30 * time.Second, MayGiveUp: may.Load, dial: w.dial})
		ended := supervising(t, quiet(t), d)
		w.listen().Close()
		first.Stop()
		time.Sleep(time.Hour + time.Second)
		select {
		case err := <-ended:
			t.Fatalf("gave up: %v", err)
		default:
		}
		may.Store(true)
		begin := time.Now()
		err := <-ended
		if took := time.Since(begin); took > 30*time.Second {
			t.Errorf("gave up after another %s, want at the end of the next 30s", took)
		}
		if err == nil || !strings.Contains(err.Error(), "30s") {
			t.Errorf("error %v, want one that names the limit", err)
		}
		d.Close()
	})
}
