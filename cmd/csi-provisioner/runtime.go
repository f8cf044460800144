package main

import (
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"k8s.io/klog/v2"
)

const (
	// gcPercent is by how much the heap may grow before it is collected. Go's default of 100 lets it double, for a few
	// percent less CPU; below 75 the CPU grows faster than the memory falls.
	gcPercent = 75
	// limitShare is how much of the container's memory the heap may take before it is collected more often.
	limitShare = 0.9
	// procs is how many processors run Go code at once. One makes hundreds of volumes a second; each further one costs
	// wake-ups of idle threads for most requests (15 % of the CPU on two cores), and more on bigger nodes.
	procs = 1
	// cgroupRoot is where a container sees its own limits.
	cgroupRoot = "/sys/fs/cgroup"
)

// setUpMemory tunes the collector, as far as the environment (GOGC, GOMEMLIMIT) does not.
func setUpMemory(logger klog.Logger, env environment) {
	if env.gc == "" {
		debug.SetGCPercent(gcPercent)
	}
	if env.memLimit != "" || env.containerMemory == 0 {
		return
	}
	limit := int64(limitShare * float64(env.containerMemory))
	debug.SetMemoryLimit(limit)
	logger.V(2).Info("The heap stays within the memory limit of the container", "containerBytes", env.containerMemory, "GOMEMLIMIT", limit)
}

// setUpProcs bounds the processors that run Go code, as far as the environment (GOMAXPROCS) does not. follow is
// --automaxprocs: as many as the CPU limit of the container allows, which is the runtime's default.
func setUpProcs(logger klog.Logger, env environment, follow bool) {
	switch {
	case env.maxProcs == "" && follow:
		runtime.SetDefaultGOMAXPROCS()
		logger.Info("GOMAXPROCS follows the CPU limit", "GOMAXPROCS", runtime.GOMAXPROCS(0))
	case env.maxProcs == "":
		runtime.GOMAXPROCS(procs)
	case follow:
		logger.Info("GOMAXPROCS is left as the environment has it", "GOMAXPROCS", runtime.GOMAXPROCS(0))
	}
}

// readMemoryLimit returns the memory limit of the container in bytes, of cgroup version 2 or 1; 0 for none.
func readMemoryLimit(root string) int64 {
	for _, file := range []string{"memory.max", filepath.Join("memory", "memory.limit_in_bytes")} {
		text, err := os.ReadFile(filepath.Join(root, file)) //nolint:gosec // a constant but in tests
		if err != nil {
			continue
		}
		limit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		// Version 2 says "max", version 1 a number that no machine has.
		if err != nil || limit <= 0 || limit > math.MaxInt64/2 {
			return 0
		}
		return limit
	}
	return 0
}
