package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/csi-sidecars/external-provisioner/test/cluster"
)

// subject is the program that is measured, while it runs.
type subject struct {
	process *cluster.Process
	address string // of its HTTP server
}

const (
	// quietFor is how long the program must use no CPU and make no request to count as done.
	quietFor  = time.Second
	quietTick = 100 * time.Millisecond
	// ticksPerSecond is the unit of CPU time in /proc, on every Linux that there is.
	ticksPerSecond = 100
)

// ready waits for /readyz.
func (s *subject) ready(ctx context.Context) error {
	return s.process.WaitReady(ctx, func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.address+"/readyz", nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		defer func() { _ = response.Body.Close() }()
		if _, err := io.Copy(io.Discard, response.Body); err != nil {
			return err
		}
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("not ready: %s", response.Status)
		}
		return nil
	})
}

// moment is what the program has used up to now.
type moment struct {
	cpu     time.Duration
	traffic map[operation]amount
}

// quiet waits until the program has nothing to do and returns what it has used by then.
func (s *subject) quiet(ctx context.Context, p *proxy) (moment, error) {
	var last moment
	since, tick := time.Now(), time.NewTicker(quietTick)
	defer tick.Stop()
	for {
		cpu, err := s.cpu()
		if err != nil {
			return moment{}, err
		}
		now := moment{cpu: cpu, traffic: p.snapshot()}
		if last.traffic == nil || busier(last, now) {
			last, since = now, time.Now()
		}
		if time.Since(since) >= quietFor {
			return now, nil
		}
		select {
		case <-tick.C:
		case <-s.process.Done():
			return moment{}, fmt.Errorf("the program has ended:\n%s", s.process.Log())
		case <-ctx.Done():
			return moment{}, fmt.Errorf("the program does not come to rest: %w", context.Cause(ctx))
		}
	}
}

// busier allows for one tick of the clock: the runtime of an idle program does a little now and then.
func busier(last, now moment) bool {
	if now.cpu-last.cpu > time.Second/ticksPerSecond {
		return true
	}
	for _, a := range since(last.traffic, now.traffic) {
		if a.Requests > 0 {
			return true
		}
	}
	return false
}

// cpu returns the CPU time of the program, user and system.
func (s *subject) cpu() (time.Duration, error) {
	text, err := os.ReadFile(s.proc("stat"))
	if err != nil {
		return 0, err
	}
	return parseCPU(string(text))
}

func (s *subject) proc(file string) string {
	return filepath.Join("/proc", strconv.Itoa(s.process.PID()), file)
}

// parseCPU reads /proc/<pid>/stat. The name in brackets may hold anything, so fields count from its end.
func parseCPU(stat string) (time.Duration, error) {
	const user, system = 11, 12
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) <= system {
		return 0, fmt.Errorf("read the CPU time: %q", stat)
	}
	var ticks int64
	for _, at := range []int{user, system} {
		n, err := strconv.ParseInt(fields[at], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read the CPU time: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / ticksPerSecond, nil
}

// memory returns a line of /proc/<pid>/status in bytes: VmRSS, VmHWM, RssAnon.
func (s *subject) memory(line string) (int64, error) {
	text, err := os.ReadFile(s.proc("status"))
	if err != nil {
		return 0, err
	}
	return parseMemory(string(text), line)
}

func parseMemory(status, line string) (int64, error) {
	for text := range strings.Lines(status) {
		name, value, _ := strings.Cut(text, ":")
		if fields := strings.Fields(value); name == line && len(fields) == 2 && fields[1] == "kB" {
			kib, err := strconv.ParseInt(fields[0], 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("no %s in the process's status", line)
}
