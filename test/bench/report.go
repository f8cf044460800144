package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"text/tabwriter"
)

// report is everything that was found, as it goes to JSON.
type report struct {
	Machine   machine  `json:"machine"`
	Arguments []string `json:"arguments"`
	Results   []result `json:"results"`
	// Against has the ratios to another program, none without -against.
	Against []comparison `json:"against,omitempty"`
}

// machine tells where the figures come from: they can only be compared with others from the same.
type machine struct {
	CPU  string `json:"cpu"`
	CPUs int    `json:"cpus"`
	OS   string `json:"os"`
	Arch string `json:"arch"`
}

func thisMachine() machine {
	m := machine{CPUs: runtime.NumCPU(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	info, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return m
	}
	defer func() { _ = info.Close() }()
	for scanner := bufio.NewScanner(info); scanner.Scan(); {
		if name, value, ok := strings.Cut(scanner.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
			m.CPU = strings.TrimSpace(value)
			break
		}
	}
	return m
}

func (r report) writeJSON(file string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o600)
}

func mebibytes(bytes int64) float64 { return float64(bytes) / (1 << 20) }

// print writes the two tables: the cases, and for the last of them what it asked of the API server.
func (r report) print(out io.Writer) {
	fmt.Fprintf(out, "%d × %s, %s/%s\n\n", r.Machine.CPUs, cmp.Or(r.Machine.CPU, "CPU"), r.Machine.OS, r.Machine.Arch)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "over\tsize\tvolumes\tmade/s\tgone/s\tp50 ms\tp99 ms\tstart CPU s\tCPU ms/create\tCPU ms/delete\tsynced MiB\tpeak MiB\tend MiB\trequests\tkB\t")
	for _, c := range r.Results {
		fmt.Fprintf(table, "%s\t%d\t%d\t%.0f\t%.0f\t%.0f\t%.0f\t%.2f\t%.2f\t%.2f\t%.1f\t%.1f\t%.1f\t%.2f\t%.1f\t\n",
			c.Over, c.Size, c.Volumes, c.VolumesPerSecond, c.DeletionsPerSec, c.SavedP50, c.SavedP99, c.StartCPU/1000,
			c.CreateCPU, c.DeleteCPU, mebibytes(c.SyncedBytes), mebibytes(c.PeakBytes), mebibytes(c.EndBytes),
			c.RequestsPerVolume, c.BytesPerVolume/1000)
	}
	_ = table.Flush() // out is the terminal.
	for _, c := range lastOfEach(r.Results) {
		fmt.Fprintf(out, "\nA volume's requests, with %d %s:\n\n", c.Size, c.Over)
		table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(table, "verb\tresource\trequests\tbytes sent\tbytes received\t")
		for _, l := range c.Requests {
			fmt.Fprintf(table, "%s\t%s\t%.3f\t%.0f\t%.0f\t\n", l.Verb, l.Resource, l.Requests, l.Sent, l.Received)
		}
		_ = table.Flush()
	}
}

// lastOfEach returns the biggest case of each sweep.
func lastOfEach(results []result) []result {
	var last []result
	for i, r := range results {
		if i+1 == len(results) || results[i+1].Over != r.Over {
			last = append(last, r)
		}
	}
	return last
}

func compareOperations(a, b operation) int {
	return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Verb, b.Verb))
}
