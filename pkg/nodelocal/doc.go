// Package nodelocal decides what one of many instances does when there is one on
// each node: which claims are its own, which it competes for and after what wait,
// and whether its node has room. Facts, the time and random numbers come in,
// verdicts and waits go out. The package never reads a clock, waits or calls.
package nodelocal
