// SPDX-License-Identifier: Apache-2.0

// Package parallel does the same work for many items at once.
package parallel

import "sync"

// Map calls f for all items at once, and returns the results in the items' order.
func Map[T, R any](items []T, f func(T) R) []R {
	results := make([]R, len(items))
	var group sync.WaitGroup
	for i, item := range items {
		group.Go(func() { results[i] = f(item) })
	}
	group.Wait()
	return results
}
