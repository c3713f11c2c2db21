"""The demo's attacks: what each tries with a stolen token, and the Reason for which it must be refused."""
