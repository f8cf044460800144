// Package driveraway tells the users of claims that the CSI driver is not connected. Without it a claim that waits for
// the driver has no event at all: its work does not begin before the driver is back.
//
//	notices.go     decides whom to tell (pure)
//	controller.go  looks every few seconds and records the events
package driveraway
